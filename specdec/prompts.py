"""Prompts to measure with: five kinds of work, from free conversation to copying most of a text."""

from __future__ import annotations

from typing import NamedTuple


class BenchPrompt(NamedTuple):
    """kind: what the work is like, as a table names it. text: what the user asks."""

    kind: str
    text: str


CHAT = (
    "A friend is about to move to a city where they know nobody. What would you tell them to do in the "
    "first month?",
    "What is the difference between weather and climate? Explain it so that a ten-year-old understands.",
    "I wake up at four in the morning and cannot sleep again. What may be the reasons, and what can I try?",
)

CODE = (
    "Write a Python function that takes a list of (start, end) intervals and merges those that overlap. "
    "Give it a docstring and three test cases.",
    "This function should return the n-th row of Pascal's triangle, but for n = 3 it returns [1, 3, 4, 1]. "
    "Find the mistake, explain it in one sentence, and write the corrected function.\n\n"
    "```python\n"
    "def pascal_row(n):\n"
    "    row = [1]\n"
    "    for k in range(n):\n"
    "        row.append(1)\n"
    "        for i in range(1, len(row) - 1):\n"
    "            row[i] = row[i] + row[i - 1]\n"
    "    return row\n"
    "```",
    "Write a class LRUCache in Python with the methods get(key) and put(key, value). Both must take "
    "constant time. Explain in a comment how the oldest entry is found.",
)

LIGHTHOUSE = (
    "The lighthouse on Skarn Point was built in 1871, after eleven ships had been lost on the reef in a "
    "single winter. For more than a hundred years three keepers and their families lived there. They "
    "trimmed the lamp, wound the clockwork that turned the lens, and wrote down wind, visibility and every "
    "ship that passed. Supplies came by boat once a fortnight, weather permitting; in the winter of 1903 "
    "it did not permit for seven weeks, and the keepers lived on potatoes and salted herring. Electricity "
    "reached the point in 1948, and with it a radio, which the keepers' children remember better than the "
    "light. In 1984 the lamp was automated. The last keeper locked the door in October, handed over a key "
    "that nobody needed, and moved to a flat in town from which, his daughter says, he watched the beam "
    "every night until he died. Today the buildings belong to a small association. Its members have "
    "repaired the roof, catalogued 4,200 pages of the keepers' logbooks, and found in them something the "
    "meteorologists had not expected: the longest unbroken record of sea fog on this coast, which is now "
    "used to study how the currents offshore have shifted. The association would like to open the station "
    "to visitors next summer, but the road over the causeway is under water for five hours of every tide, "
    "and the insurance for that has not been settled."
)

BAKERY = (
    "When the bakery in Oberlind closed, the nearest loaf of bread was fourteen kilometres away. Eighteen "
    "months later the village has one again, and it belongs to the people who buy from it. Two hundred and "
    "six households each paid 250 euros for a share; the parish lent the old fire station, and a retired "
    "baker from the next valley agreed to teach for a year. The cooperative bakes four days a week. On the "
    "other three, the ovens are rented to a woman who makes crispbread for restaurants, which pays for "
    "half of the electricity. The first winter was hard: the flour bill was a third higher than planned, "
    "and a broken proofing cabinet cost the savings of six months. Members were asked whether to raise "
    "prices or to close on Wednesdays, and they chose the Wednesdays. Since then the accounts have been "
    "even. What nobody had planned is the bench in front of the door. It was put there for deliveries, but "
    "by half past seven it is full, and the community nurse has started to hold her weekly hour on it. "
    "Three neighbouring villages have asked for the statutes. The chairwoman sends them, together with a "
    "list of everything that went wrong, which is longer than the statutes."
)

BRIDGE = (
    "Minutes of the works committee, 14 March. Present: Adeyemi (chair), Brandt, Costa, Lindqvist, Okafor. "
    "The inspection of the footbridge at Mill Lane found corrosion in four of twelve hangers and a crack "
    "in the northern abutment. Lindqvist reported that the bridge is safe for walkers, but not for the "
    "maintenance vehicle, which has to use the ring road until further notice; this adds forty minutes to "
    "each round. Three offers for the repair were compared. The cheapest, at 84,000, replaces the hangers "
    "only. The second, at 117,000, includes the abutment. The third, at 109,000, includes the abutment but "
    "needs a closure of nine weeks instead of five. Costa argued for the second offer, because the school "
    "on the east bank has no other crossing and the summer holidays are six weeks long. Brandt asked "
    "whether the grant of the region covers the abutment; Okafor will find out by 28 March. The committee "
    "decided, with four votes and one abstention, to accept the second offer if the grant covers at least "
    "half, and otherwise to repair the hangers this year and the abutment next year. Work should begin in "
    "the first week of July. The residents will be told by letter, and signs at both ends will show the "
    "detour. Next meeting: 4 April."
)

SUMMARY = (
    f"Summarize this text in three sentences.\n\n{LIGHTHOUSE}",
    f"Summarize the main points of this article as a short list.\n\n{BAKERY}",
    f"What was decided in this meeting, who has to do what, and by when?\n\n{BRIDGE}",
)

TRANSLATION = (
    "Translate to French: The museum opens at ten o'clock, but the garden behind it is open all day. If it "
    "rains, the guided tour begins in the old library, where you can also leave your umbrellas.",
    "Translate to German: My grandmother kept her recipes in a wooden box. Most of them are written on the "
    "backs of letters, so that while the dough is resting you can read what her sister thought of the war.",
    "Translate to Spanish: Please remember that the bridge is closed in July. The bus takes a different "
    "road, and the journey lasts twenty minutes longer. Tickets that you have already bought remain valid.",
)

MISSPELT = (
    "The river Tamsin rises in a bog above the village of Hale, and for its first ten miles it is hardly "
    "wider then a man can jump. Sheep drink from it, children dam it, and every spring somebody looses a "
    "boot in it. Below the mill it becomes a diferent river. Two streams join it from the west, the valley "
    "opens, and the water, which was brown with peat, is suddenly clear enough to see the trout. Fishermen "
    "come from far away for these trout, although they seldom catch any. At Corrow the river passes under "
    "a bridge with seven arches, of which no two are the same; the builder, it is said, was payed by the "
    "arch and got bored. From there it is another thirty miles to the sea. The last of them are tidal, "
    "lined with mud and reeds, and belong to the birds. In Febuary, when the geese arrive, you can here "
    "the estuary before you see it."
)

INVOICES = (
    "def total_of_invoices(invoices, currency):\n"
    "    total = 0\n"
    "    for inv in invoices:\n"
    "        if inv.currency != currency:\n"
    "            continue\n"
    "        if inv.cancelled:\n"
    "            continue\n"
    "        for pos in inv.positions:\n"
    "            price = pos.price * pos.amount\n"
    "            if pos.discount:\n"
    "                price = price - price * pos.discount / 100\n"
    "            total = total + price\n"
    "        if inv.shipping:\n"
    "            total = total + inv.shipping\n"
    "    return total\n\n\n"
    "def unpaid_invoices(invoices, today):\n"
    "    unpaid = []\n"
    "    for inv in invoices:\n"
    "        if inv.cancelled or inv.paid:\n"
    "            continue\n"
    "        if inv.due < today:\n"
    "            unpaid.append(inv)\n"
    "    return unpaid\n"
)

LETTER = (
    "Dear Mr. Harrow,\n\n"
    "Thank you for your order of 3 May. The two oak shelves left our workshop on Monday and will be "
    "delivered on 12 May between eight and twelve o'clock. The driver will call you half an hour before he "
    "arrives. Please make sure that somebody is at home on 12 May, because the shelves are heavy and "
    "cannot be left outside.\n\n"
    "The lamp that you ordered with them is not in stock at the moment. We expect it at the end of the "
    "month and will send it to you without further cost. If you would rather not wait, you may cancel the "
    "lamp until 20 May, and we will return its price to your account.\n\n"
    "Should anything be damaged, please take a photograph before you unpack further and send it to us "
    "within three days. We will then arrange for a replacement.\n\n"
    "With kind regards,\n"
    "Ellen Marsh\n"
    "Marsh & Daughter, Furniture"
)

EDITING = (
    "Correct the spelling mistakes in this text and write the whole text again. Change nothing else.\n\n"
    f"{MISSPELT}",
    "Rename the variable inv to invoice in both functions and write the whole code again. Change nothing "
    "else."
    f"\n\n```python\n{INVOICES}```",
    "Write this letter again, word for word, but move the delivery from 12 May to 19 May everywhere.\n\n"
    f"{LETTER}",
)

KINDS = {
    "chat": CHAT,
    "code": CODE,
    "summary": SUMMARY,
    "translation": TRANSLATION,
    "editing": EDITING,
}

# One of each kind, then the next of each, so that the first few already are a bit of everything.
PROMPTS = tuple(BenchPrompt(kind, texts[i]) for i in range(len(CHAT)) for kind, texts in KINDS.items())
