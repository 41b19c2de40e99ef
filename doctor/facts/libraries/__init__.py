"""What `rules/<library>/library.yaml` says of jobs and servers, as typed records. Python knows the kinds, no names."""
