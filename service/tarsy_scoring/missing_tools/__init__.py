"""Tools that agents lacked: names, demand, ledger, decisions and reports."""
