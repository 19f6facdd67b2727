"""From Python's tree to ours: names, types, and what rules may say."""
