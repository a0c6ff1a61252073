"""What SGLang's server lacks on a machine without an accelerator, applied to the server's process only."""
