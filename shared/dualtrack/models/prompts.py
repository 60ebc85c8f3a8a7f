"""The texts that models are given by the platform itself."""

from __future__ import annotations

import json
from typing import Final

AGENT_SYSTEM_PROMPT: Final = """\
You are an agent that does a job on its own, step by step, with tools. You work in a workspace directory that holds the job's files.
How to work:
1. Look first: before you use a file, see its first five lines, so that you know its exact columns, separator and formats.
2. Compute with code: never do arithmetic in your head and never write a figure from memory. Let one short program read the
whole file, compute the values, write them into the output file and print them.
3. When a step fails, read the error, find its cause and change the code before you try again: the same call fails the same way.
4. Compare what was printed with what the job asks for. If something is missing or looks wrong, correct the program and run it again.
5. When the output file holds everything that the job asks for, call finish with a short answer."""
"""The agent's standing orders where its profile brings none."""

TOOLS_GONE_NOTE: Final = """\
Whoever runs this platform has taken these tools away, they can't be called any more: {tools}. Do without them; if the job can't be done \
without them, finish with success false and say so."""
"""Added to the system prompt where an agent's profile names tools that there are no longer."""

NETWORK_NOTE: Final = """\
From the sandbox you reach these hosts and no others, by HTTP and HTTPS through the proxy that its environment names: {hosts}. \
Where a tool says that it has no network, it has this one."""
"""Added to the system prompt of agents whose sandboxes have a network."""

PLACEHOLDER_NOTE: Final = """\
The variable {variable} in its environment holds a placeholder for the secret {name}: send it as it is in the header {headers} to {hosts}, \
and the real value is put in on the way. Anywhere else it is refused."""
"""Added for each secret that an agent's requests may carry."""

JSON_ACTION_RULES: Final = """\
Each answer is one JSON object: {"thought": one sentence on what you do next, "tool": a tool's name, "arguments": its arguments}.
You then get the tool's result. One tool per answer."""
"""Added to the system prompt for models that act by JSON."""

_EXAMPLE_CODE: Final = """\
import csv, sqlite3
def value(text):
    try:
        return float(text)
    except ValueError:
        return text
with open('library.csv', newline='') as file:
    header, *rows = csv.reader(file, delimiter=',')
db = sqlite3.connect(':memory:')
db.execute('create table t (' + ', '.join(header) + ')')
for row in rows:
    db.execute('insert into t values (' + ', '.join('?' * len(header)) + ')', [value(text) for text in row])
queries = [
    ('Total fees', 'select sum(days * rate) from t'),
    ('Loans longer than 30 days', 'select count(*) from t where days > 30'),
    ('Fees and average fee by branch', 'select branch, sum(days * rate), avg(days * rate) from t group by branch'),
    ('Fees by month', 'select substr(date, 1, 7), sum(days * rate) from t group by 1'),
    ('Longest loan', 'select loan_id, days from t order by days desc limit 1'),
    ('Best genre by fees', 'select genre, sum(days * rate) from t group by genre order by 2 desc limit 1'),
]
with open('loans.md', 'w') as out:
    for title, query in queries:
        print('## ' + title, file=out)
        for row in db.execute(query):
            print('- ' + ', '.join(f'{x:.2f}' if isinstance(x, float) else str(x) for x in row), file=out)
print(open('loans.md').read())
"""

_EXAMPLE_RESULT: Final = """\
## Total fees
- 812.40
## Loans longer than 30 days
- 12
## Fees and average fee by branch
- Harbour, 500.10, 9.62
- Hill, 312.30, 7.26
## Fees by month
- 2024-01, 402.15
- 2024-02, 410.25
## Longest loan
- L17, 88.00
## Best genre by fees
- Travel, 301.75"""

_EXAMPLE_LOOK: Final = {
    "thought": "I look at the first lines of library.csv.",
    "tool": "read_file",
    "arguments": {"path": "library.csv", "limit_lines": 5},
}
_EXAMPLE_COMPUTE: Final = {
    "thought": "All figures in one program: total fees, loans over 30 days, fees and average fee by branch, fees by month, longest loan, "
    "best genre. It writes loans.md.",
    "tool": "execute_python",
    "arguments": {"code": _EXAMPLE_CODE},
}
_EXAMPLE_FINISH: Final = {
    "thought": "loans.md holds all that was asked for.",
    "tool": "finish",
    "arguments": {"answer": "I wrote loans.md: total fees 812.40, best genre Travel."},
}

JSON_EXAMPLE_TOOLS: Final = frozenset({"read_file", "execute_python", "finish"})
JSON_EXAMPLE: Final = f"""\
Python code uses only the standard library, of which csv and sqlite3 are part, and single quotes. Figures from a table come from SQL: one
program with one query for each figure that the job asks for. Sums by, per or for each group use group by; so does the best item, product or
month: group by it, then the first in descending order. Other figures are over all rows, without group by. The file names, column names,
delimiter and arithmetic are those of the job at hand.
Example of a whole job, "From library.csv write loans.md: total fees (days times rate), how many loans are longer than 30 days, fees and
average fee of each branch, fees of each month, the longest loan, best genre by fees.":
{json.dumps(_EXAMPLE_LOOK)}
Result of read_file
loan_id,branch,genre,date,days,rate
L1,Hill,Travel,2024-01-03,12,0.20
{json.dumps(_EXAMPLE_COMPUTE)}
Result of execute_python
{_EXAMPLE_RESULT}
{json.dumps(_EXAMPLE_FINISH)}"""
"""For agents with those tools: a worked example of another job, in the very form of the answers. Small models follow a pattern more
surely than rules, and copy placeholders as they stand. Single quotes, because a double quote must be escaped in JSON, which they forget."""

JSON_REFLECT: Final = 'The last step failed. Begin with "reflection": what was wrong, and what you change now.'

JSON_GO_ON: Final = "(Go on with the next step; never repeat a step that worked. If everything the job asks for is done, call finish.)"
"""Closes every result: a small model that is not reminded of it goes round in circles."""

LOCAL_CHAT_SYSTEM_PROMPT: Final = """\
You are the assistant of Dualtrack, a self-hosted agent platform. You run as a small local language model on this machine.
Answer briefly and correctly; say so when you do not know."""
"""For chats that bring no system message, so that the local model does not claim to be somebody else's product."""

SUMMARY_ASK: Final = """\
The conversation above gets too long: it will be replaced by a summary that you write now, and you go on with the job from that alone.
Call no tool. Write plain text of at most {words} words under these headings:
Goal: what the job asks for, with everything that the user asked since.
Done: each thing that you have done above, and its result with all figures, names, formats and error messages, copied word for word.
Decisions: what you decided and why; what you tried that did not work.
Files: paths of files and artifacts, and what each holds.
Next: what is still to be done, and what you do not know yet."""
"""Asked of a model after the context that its summary is to replace. The first sentence is how the scripted model server knows it."""

SUMMARY_HEAD: Final = "Summary of the first {steps} steps of your work, which are shown no more:"
"""Before a summary, where the context goes on from it."""
