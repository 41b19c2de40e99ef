"""attn-doctor: diagnoses the attention stack of LLM training before a job runs."""

__version__ = "0.1.0"
