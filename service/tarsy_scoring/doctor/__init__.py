"""
Looks at the database, the brokers, the source and the judge that the settings name, and says what does not
fit.
"""
