"""The mechanism: attention whose query/key rank, value rank and head count are independent."""
