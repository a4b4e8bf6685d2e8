"""Databases for tests of ledgers: plain SQL on any of them, and a ledger of version 1."""

import sqlalchemy as sql


def execute(url: str, statement: str) -> None:
    engine = sql.create_engine(url)
    with engine.begin() as connection:
        connection.execute(sql.text(statement))
    engine.dispose()


VERSION_1 = """
CREATE TABLE fedtide_schema (version INTEGER NOT NULL PRIMARY KEY);
CREATE TABLE rounds (
    federation VARCHAR(200) NOT NULL, round BIGINT NOT NULL, time DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (federation, round)
);
CREATE TABLE participation (
    federation VARCHAR(200) NOT NULL, round BIGINT NOT NULL, client VARCHAR(200) NOT NULL,
    stage VARCHAR(9) NOT NULL, weight DOUBLE PRECISION, time DOUBLE PRECISION, asked BIGINT,
    PRIMARY KEY (federation, round, client),
    FOREIGN KEY (federation, round) REFERENCES rounds (federation, round)
);
INSERT INTO fedtide_schema VALUES (1);
INSERT INTO rounds VALUES ('default', 0, 10.0), ('default', 1, 20.0);
INSERT INTO participation VALUES
    ('default', 0, 'ann', 'used', 1.0, 9.0, NULL),
    ('default', 0, 'bob', 'reported', NULL, 9.5, NULL),
    ('default', 1, 'bob', 'used', 1.0, 19.0, 0);
"""
"""A ledger of version 1, as fedtide 0.1 created it."""


def create_version_1(url: str) -> None:
    script = VERSION_1
    if url.startswith("sqlite"):
        script = script.replace("DOUBLE PRECISION", "DOUBLE")
    for statement in script.split(";")[:-1]:
        execute(url, statement)
