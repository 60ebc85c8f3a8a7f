"""`dualtrack doctor`: proves on any database and object store that the platform's promises hold."""
