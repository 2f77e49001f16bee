"""A trained language model behind HTTP: OpenAI's completions for many clients in one running batch, and states that
stay on the server. `stairwell serve RUN`.

`batch.py` decodes all requests together and `states.py` keeps what was read; neither knows of HTTP. `requests.py` says
what a request may be, `description.py` tells it to programs. `completing.py` and `keeping.py` are the routes of these,
`app.py` has the others and puts all together behind `guard.py`; `running.py` starts the server.
"""
