
-- Notifies brokers of new rows when their transaction commits (notify = true of the source).
-- PostgreSQL commits one after the other what notifies: leave it out where thousands of transactions
-- a second insert rows.
create or replace function punctual_outbox_notify() returns trigger language plpgsql as $$
begin
  notify punctual_outbox;
  return null;
end $$;
drop trigger if exists punctual_outbox_notify on punctual_outbox;
create trigger punctual_outbox_notify after insert on punctual_outbox
  for each statement execute function punctual_outbox_notify();
