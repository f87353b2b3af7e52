"""What retention and the scheduler both write in a step: the plan in the making, events, timers, costs."""
