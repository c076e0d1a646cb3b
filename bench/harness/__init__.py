"""The harness: servers, processes and their CPU, statistics, and the report; knows no benchmark."""
