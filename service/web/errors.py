"""Error pages, in the look of the others."""

from __future__ import annotations

from fastapi.responses import HTMLResponse

from service.errors import LikewiseError
from service.web.contexts import ErrorPage
from service.web.render import render

_TITLES = {401: "A token is needed", 403: "Not allowed", 404: "Not found", 503: "Not available"}


def page_of(error: LikewiseError) -> HTMLResponse:
    """Return the page of an error of ours; a browser on another machine is asked for a token as the password."""
    title = _TITLES.get(error.http_status, "That did not work")
    remedy = error.remedy
    if error.http_status == 401:
        remedy += " Your browser asks for it: leave the name empty, the token is the password."
    response = render(ErrorPage(title, error.http_status, str(error), remedy), error.http_status)
    if error.http_status == 401:
        response.headers["WWW-Authenticate"] = 'Basic realm="Likewise: a token as the password"'
    return response


def page_of_status(status: int, path: str) -> HTMLResponse:
    """Return the page of an error of HTTP itself, 404 and 500 among them."""
    if status == 404:
        page = ErrorPage("Not found", 404, f"There is no page {path!r}.", "The list of experiments has them all.")
    elif status >= 500:
        text = "Likewise failed while it made this page; the log of the service has the details."
        page = ErrorPage("Something broke", status, text, "Nothing was lost. Try again, or go back to the experiments.")
    else:
        page = ErrorPage("That did not work", status, f"{path} cannot be asked for in this way.", "")
    return render(page, status)
