"""Which sequence runs next. No clock (time is an argument), no thread, no bytes."""
