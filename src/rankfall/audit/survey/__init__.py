"""A-tab1 for every architecture that ships with `transformers`: width, heads, head size, and where H = d/r fails."""

from rankfall.audit.survey.collect import Skipped, Survey, survey_configurations
from rankfall.audit.survey.shape import HeadShape, read_shape

__all__ = ["HeadShape", "Skipped", "Survey", "read_shape", "survey_configurations"]
