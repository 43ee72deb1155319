"""The report: the notebooks executed headless, and one page of their answers.

study.py           the whole way, from what has to be trained to the page of cards
(templates/index.html) notebooks.py       the study's notebooks, the runs that each needs, and what
an executed one shows of itself execute.py         notebooks → executed notebooks notebook_page.py
the page of one notebook;   page.py: the frame and the text of every page slides.py          a slide
deck of one notebook
"""
