"""Environment specs: ids, parameters, state fields, spaces and limits. The rules are a header or Python functions."""
