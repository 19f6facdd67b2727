"""A team, rules in C++."""
