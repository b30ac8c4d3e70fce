"""The planner: does a run fit, how fast is it, and what limits it? Importing it imports no framework.

From a model's sizes to the answer:

    shape, layout         the sizes of a model, and the layout of a run over cards
    step_model/           the operations of a step, and their time by a roofline model
    memory_model/         the memory of a card during a step
    cost                  the time of a whole step
    trainer               the parallelism that this trainer supports for a model
    interval              the range of a time, from published runs
    search                the fastest layout that fits
    vision                PaddleOCR-VL: vision tower, projector and text
    answer                all of the above, with alternatives and the cheapest change that makes a run fit
    table                 the answer as text
"""
