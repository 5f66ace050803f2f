"""Three views of the same tokens, measured together: raw, unit and centred."""

from rankfall.measures.views.three import VIEWS, Views, views, views_with_and_without
from rankfall.measures.views.together import together

__all__ = ["VIEWS", "Views", "together", "views", "views_with_and_without"]
