"""An HTTP server for a trained language model: OpenAI completions for many clients in one batch, and states that stay
on the server. `stairwell serve RUN`.

`scheduler.py` decodes all requests in one batch and `state_store.py` stores states; neither uses HTTP. `requests.py`
has the models of the request bodies, and `openapi.py` publishes their schemas. `completions.py`, `chat.py` and
`state_routes.py` have the endpoints, and `request_log.py` and `metrics.py` what is recorded about requests. `app.py`
puts everything together behind `access.py`, and `run_server.py` starts the server.
"""
