-- Tables that Punctual uses in a PostgreSQL database (version 13 or later).

-- The outbox: a row that is committed becomes a call to Punctual, once.
create table if not exists punctual_outbox (
  id         bigint generated always as identity primary key,
  verb       text        not null default 'schedule',  -- schedule, touch, cancel, pause, resume
  key        text,                                     -- the key of the task
  task       jsonb,                                    -- the task as in the API, without its key
  created_at timestamptz not null default now()
);
-- Rows come and go: vacuum by number of rows, not by share of the table.
alter table punctual_outbox set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 10000);

-- Rows of the outbox that could not be read, with the reason. Correct them and insert them again.
create table if not exists punctual_outbox_rejected (
  id          bigint      not null,
  verb        text        not null,
  key         text,
  task        jsonb,
  created_at  timestamptz not null,
  problem     text        not null,
  rejected_at timestamptz not null default now()
);

-- Fires whose statement was run with the guarantee exactly_once. Delete rows that are older than
-- the longest time over which a task is retried or redriven.
create table if not exists punctual_fires (
  fire_id     text        primary key,
  recorded_at timestamptz not null default now()
);
