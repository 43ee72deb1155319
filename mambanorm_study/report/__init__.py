"""The report: notebooks executed without a browser, and one page of their answers.

plan.py            which notebooks a study executes, and which runs it reads and trains
study.py           the whole study, and its first page (templates/index.html)
execute.py         execute notebooks with papermill
notebooks.py       find the notebooks, and read the title, question, answer and pictures of one
notebook_page.py   the HTML page of one notebook
page.py            what all pages share: frame, Markdown to HTML, formulas to MathML
slides.py          the slides of one notebook
verdict_page.py    the HTML table of verdicts
"""
