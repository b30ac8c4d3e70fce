"""Plans a run before any card is booked. Importing it imports no framework.

From the sizes of a model to the answer:

    shape, layout         the sizes of a model, and how a run of it is shared by cards
    operations, program   what a step computes and sends
    ledger, decoder_layer, memory
                          what a card holds meanwhile
    cards, cost           cards and links with their sources; the time that a step takes
    search                the fastest layout that fits
    answer                all of it, what would be gained, and the cheapest change that makes a run fit
    table, page           the answer as text, and as a page
    dry_run, journal      the same step from the program itself, followed and not computed
"""
