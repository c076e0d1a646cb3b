"""Values as people read them: durations, times and numbers, errors, log lines, and passwords masked in each."""
