"""The pipeline: request, facts, rules, confirmation, fixes, report."""
