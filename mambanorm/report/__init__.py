"""The report: the notebooks executed headless, and one page of their answers.

study.py           the whole way, from what has to be trained to the page
notebooks.py       the study's notebooks and the runs that each needs
execute.py         notebooks → executed notebooks
outcome.py         what an executed notebook shows of itself
index.py           the page of cards; its text is in templates/index.html
slides.py          a slide deck of one notebook
notebook_page.py   the page of one notebook;   page.py: the frame of every page;   markdown.py: its text
"""
