"""The routes of OpenAI's newer API: /v1/responses."""

from __future__ import annotations

from typing import Final

from octavo.server.dialects.responses import check_response, create_response
from octavo.server.dialects.responses_request import CHAT_FIELDS, ResponsesBody
from octavo.server.dialects.responses_stored import (
    cancel_response,
    delete_response,
    list_input_items,
    show_response,
)
from octavo.server.route import Access, Route, Spread

RESPONSES_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/responses",
        create_response,
        Access.TENANT,
        "Answer a conversation, and store it so that later requests can continue it",
        Spread.PREFIX,
        body=ResponsesBody,
        check=check_response,
        more_fields=CHAT_FIELDS,
        errors=(404, 409, 429, 500, 503),
        streams=True,
    ),
    Route(
        "GET",
        "/v1/responses/{response_id}",
        show_response,
        Access.TENANT,
        "A stored response",
        Spread.ID,
        query=("include", "stream", "starting_after", "include_obfuscation"),
        errors=(404,),
    ),
    Route(
        "DELETE",
        "/v1/responses/{response_id}",
        delete_response,
        Access.TENANT,
        "Delete a stored response",
        Spread.ID,
        errors=(404, 500, 503),
    ),
    Route(
        "POST",
        "/v1/responses/{response_id}/cancel",
        cancel_response,
        Access.TENANT,
        "End a response that is in progress; its output so far stays",
        Spread.ID,
        errors=(404,),
    ),
    Route(
        "GET",
        "/v1/responses/{response_id}/input_items",
        list_input_items,
        Access.TENANT,
        "The items before a stored response's output",
        Spread.ID,
        query=("order", "limit", "after", "include"),
        errors=(404,),
    ),
)
