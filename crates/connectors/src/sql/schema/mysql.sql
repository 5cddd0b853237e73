-- Tables that Punctual uses in a MySQL (8.0 or later) or MariaDB (10.6 or later) database.

-- The outbox: a row that is committed becomes a call to Punctual, once.
create table if not exists punctual_outbox (
  id         bigint       not null auto_increment primary key,
  verb       varchar(16)  not null default 'schedule',  -- schedule, touch, cancel, pause, resume
  `key`      varchar(256) character set utf8mb4 collate utf8mb4_bin,  -- the key of the task
  task       json,                                      -- the task as in the API, without its key
  created_at timestamp(6) not null default current_timestamp(6)
) engine = InnoDB;

-- Rows of the outbox that could not be read, with the reason. Correct them and insert them again.
create table if not exists punctual_outbox_rejected (
  id          bigint       not null,
  verb        varchar(16)  not null,
  `key`       varchar(256) character set utf8mb4 collate utf8mb4_bin,
  task        json,
  created_at  timestamp(6) not null default current_timestamp(6),
  problem     text         not null,
  rejected_at timestamp(6) not null default current_timestamp(6)
) engine = InnoDB;

-- Fires whose statement was run with the guarantee exactly_once. Delete rows that are older than
-- the longest time over which a task is retried or redriven.
create table if not exists punctual_fires (
  fire_id     varchar(64)  character set ascii collate ascii_bin not null primary key,
  recorded_at timestamp(6) not null default current_timestamp(6)
) engine = InnoDB;
