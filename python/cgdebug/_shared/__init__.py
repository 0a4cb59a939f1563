"""What runs in jobs, in readers of recordings and in clients alike; none of it loads torch."""
