"""Stand-ins for the compiled packages that SGLang's CPU path imports and no registry ships for a CPU."""
