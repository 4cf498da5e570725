"""Arrays that stages read and write."""
