"""What a precision does to a graph before it is optimised."""
