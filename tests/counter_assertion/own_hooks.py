"""A reward hook of one's own, which a prompt may name in its metadata."""


async def other_way_round(args, sample):
    return float(sample.response != sample.label)
