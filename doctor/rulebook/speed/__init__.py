"""What an attention call costs: time and memory by backend, predicted from recorded measurements."""
