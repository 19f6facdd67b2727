"""One agent, rules in C++."""
