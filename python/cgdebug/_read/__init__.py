"""What reads recordings and shows them; it needs neither torch nor a daemon."""
