"""The report: notebooks executed without a browser, and one page with all answers.

plan.py            which notebooks a study executes, and which runs the study reads and trains
study.py           the whole study, and the first page of the report (templates/index.html)
up_to_date.py      find the executed notebooks that need not be executed again
execute.py         execute notebooks with papermill
notebooks.py       find the notebooks; read the title, question, answer and pictures of a notebook
notebook_page.py   the HTML page of one notebook
page.py            functions for all pages: page frame, Markdown to HTML, formulas to MathML
slides.py          the slides of one notebook
verdict_page.py    the HTML table of verdicts
answer_page.py     the HTML page of the answer to a question
"""
