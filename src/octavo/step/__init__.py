"""Parts of a step that retention and the scheduler share: the plan in the making, events, timers, costs."""
