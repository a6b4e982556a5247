"""A stored score as one record: fields, shapes, the latest of a session, the document, lists and exports."""
