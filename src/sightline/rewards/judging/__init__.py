"""What a judge is asked, what its replies mean, and how it is asked."""
