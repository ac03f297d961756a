"""A notebook agent: a language model writes cells of Python, and a sandbox runs them.

The cells share one interpreter in the sandbox. It outlives this program: another one
continues the notebook with its two ids.
"""

import json
import sys

from e2b import Sandbox

# The interpreter reads a cell of JSON from each line, and answers with a line.
KERNEL = """
import ast, contextlib, io, json, sys, traceback
answers, names = sys.stdout, {"__name__": "__main__"}
for line in sys.stdin:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        try:
            cell = ast.parse(json.loads(line))
            last = cell.body.pop() if cell.body and isinstance(cell.body[-1], ast.Expr) else None
            exec(compile(cell, "cell", "exec"), names)
            if last:
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
                if value is not None:
                    print(repr(value))
        except BaseException as e:
            print("".join(traceback.format_exception_only(e)), end="")
    print(json.dumps(text.getvalue()), file=answers, flush=True)
"""


class Notebook:
    def __init__(self, sandbox, kernel):
        self.sandbox, self.kernel, self.unread = sandbox, kernel, ""
        self.output = iter(kernel)

    @classmethod
    def create(cls, template):
        sandbox = Sandbox.create(template, timeout=600)
        sandbox.files.write("/tmp/kernel.py", KERNEL)
        return cls(sandbox, sandbox.commands.run("exec python3 -u /tmp/kernel.py", background=True, stdin=True, timeout=0))

    @classmethod
    def connect(cls, sandbox_id, pid):
        sandbox = Sandbox.connect(sandbox_id)
        return cls(sandbox, sandbox.commands.connect(pid, timeout=0))

    @property
    def ids(self):
        return self.sandbox.sandbox_id, self.kernel.pid

    def run(self, cell):
        """Runs a cell, and returns what it printed and its last value."""
        self.kernel.send_stdin(json.dumps(cell) + "\n")
        while "\n" not in self.unread:
            stdout, _, _ = next(self.output)
            self.unread += stdout or ""
        line, self.unread = self.unread.split("\n", 1)
        return json.loads(line)


def model(transcript):
    """Stands in for a language model: it sees all cells and their output, and returns the next cell."""
    if not transcript:
        return "prices = [3, 4, 8]\nmean(prices)"
    if "NameError" in transcript[-1][1]:
        return "from statistics import mean\nmean(prices)"
    if len(transcript) < 3:
        return "open('/tmp/report.txt', 'w').write(f'mean of {len(prices)}: {mean(prices)}\\n')"
    return None


def main(template="base"):
    notebook, transcript = Notebook.create(template), []
    try:
        while cell := model(transcript):
            output = notebook.run(cell)
            transcript.append((cell, output))
            print(f"[{len(transcript)}]", cell.replace("\n", "\n    "))
            print(" ->", output, end="")
            if len(transcript) == 2:  # as if this program had ended
                ids = notebook.ids
                notebook.kernel.disconnect()
                notebook = Notebook.connect(*ids)
        print(notebook.sandbox.files.read("/tmp/report.txt"), end="")
    finally:
        notebook.sandbox.kill()


if __name__ == "__main__":
    main(*sys.argv[1:])
