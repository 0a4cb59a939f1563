// The tests use only its precompiled headers.
int main() { return 0; }
