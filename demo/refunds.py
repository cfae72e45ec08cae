"""Writes the demo's data: 1,000 refunds of the year 2025, the same every time.

    python3 refunds.py OUT.csv
"""
import csv
import datetime
import random
import sys

ROWS = 1000
# How busy each month is: a quiet spring, returns after the holidays.
SEASON = [1.9, 1.3, 0.9, 0.8, 0.8, 0.7, 0.9, 0.8, 0.9, 1.0, 1.4, 1.7]
# reason, how often, typical amount
REASONS = [
    ("wrong size", 34, 48.0),
    ("damaged", 22, 72.0),
    ("changed mind", 20, 55.0),
    ("late delivery", 16, 38.0),
    ("charged twice", 8, 96.0),
]


def pick(rng, weights):
    # random.choices promises no stable results between versions of Python;
    # random() does.
    at = rng.random() * sum(weights)
    for i, w in enumerate(weights):
        at -= w
        if at < 0:
            return i
    return len(weights) - 1


def refund(rng):
    month = pick(rng, SEASON) + 1
    days = (datetime.date(2025 + month // 12, month % 12 + 1, 1) - datetime.date(2025, month, 1)).days
    date = datetime.date(2025, month, 1 + int(rng.random() * days))
    reason, _, typical = REASONS[pick(rng, [r[1] for r in REASONS])]
    amount = round(typical * (0.3 + 1.4 * rng.random() ** 1.5), 2)
    return [
        date.isoformat(),
        f"O-{100000 + int(rng.random() * 900000)}",
        f"C-{1000 + int(rng.random() * 400)}",
        f"{amount:.2f}",
        reason,
    ]


def main():
    rng = random.Random(2025)
    rows = sorted(refund(rng) for _ in range(ROWS))
    with open(sys.argv[1], "w", newline="") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(["date", "order", "customer", "amount", "reason"])
        out.writerows(rows)


if __name__ == "__main__":
    main()
