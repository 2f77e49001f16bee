"""The papers' tables and figures as studies, and how they are carried out."""
