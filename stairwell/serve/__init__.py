"""A trained language model behind HTTP: OpenAI's completions for many clients in one running batch, and states that
stay on the server. `stairwell serve RUN`.

`batch.py` decodes all requests together, `requests.py` says what a request may be, `states.py` keeps streams by opaque
ids, `app.py` is the routes, `running.py` starts the server.
"""
