"""Tasks: the papers' data, today's yardsticks, and the user's own files. One task is one file."""
