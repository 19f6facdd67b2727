"""What an environment is: everything but its rules, which are a header or functions in Python."""
