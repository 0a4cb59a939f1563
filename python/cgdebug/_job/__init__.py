"""What runs inside the job, beside torch."""
