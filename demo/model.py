# The kind of script that a model writes when it is asked:
# "Sum up our refunds of 2025 by month, and draw a chart of them."
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import pandas as pd

refunds = pd.read_csv("/data/refunds.csv", parse_dates=["date"])
refunds["month"] = refunds["date"].dt.to_period("M")

by_month = refunds.groupby("month")["amount"].agg(["count", "sum"])
print(f"{'month':<10}{'refunds':>8}{'sum':>12}")
for month, row in by_month.iterrows():
    print(f"{month.strftime('%b %Y'):<10}{row['count']:>8.0f}{row['sum']:>12,.2f}")
print(f"{'2025':<10}{by_month['count'].sum():>8.0f}{by_month['sum'].sum():>12,.2f}")

parts = refunds.pivot_table(index="month", columns="reason", values="amount", aggfunc="sum", fill_value=0)
parts = parts[parts.sum().sort_values(ascending=False).index]
labels = [m.strftime("%b") for m in parts.index]

plt.rcParams.update({"font.size": 12, "axes.edgecolor": "#b8bec8", "axes.labelcolor": "#3b4252",
                     "xtick.color": "#3b4252", "ytick.color": "#3b4252"})
fig, ax = plt.subplots(figsize=(12, 7), dpi=100)
bottom = [0.0] * len(parts)
for reason, colour in zip(parts.columns, ["#264653", "#2a9d8f", "#8ab17d", "#e9c46a", "#e76f51"]):
    ax.bar(labels, parts[reason], bottom=bottom, width=0.68, color=colour, label=reason)
    bottom = [b + v for b, v in zip(bottom, parts[reason])]
for x, (total, n) in enumerate(zip(bottom, by_month["count"])):
    ax.text(x, total + 90, f"{total:,.0f}", ha="center", fontsize=12, fontweight="bold", color="#2e3440")
    ax.text(x, -0.058, f"{n} refunds", ha="center", va="top", fontsize=9, color="#7b8494",
            transform=ax.get_xaxis_transform())

ax.set_title("Refunds of 2025 by month and reason", loc="left", fontsize=19, fontweight="bold",
             color="#2e3440", pad=30)
ax.text(0, 1.03, f"{by_month['count'].sum():,} refunds, {by_month['sum'].sum():,.2f} EUR in all",
        transform=ax.transAxes, fontsize=12.5, color="#6b7484")
ax.set_ylabel("refunded, EUR")
ax.yaxis.set_major_formatter(lambda v, _: f"{v:,.0f}")
ax.set_ylim(0, max(bottom) * 1.12)
ax.grid(axis="y", color="#e5e9f0", linewidth=1)
ax.set_axisbelow(True)
ax.tick_params(length=0)
for side in ("top", "right", "left"):
    ax.spines[side].set_visible(False)
ax.legend(title=None, frameon=False, ncol=5, loc="upper right", bbox_to_anchor=(1.0, 1.0), fontsize=11)
fig.tight_layout()
fig.savefig("/tmp/plot.png")
