// Its precompiled headers are what the tests use of it.
int main() { return 0; }
