CREATE TABLE noted_charges (scope text, chain_id text, charged_usd numeric);
CREATE FUNCTION note_charge() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO noted_charges VALUES (NEW.scope, NEW.chain_id, NEW.charged_usd);
  RETURN NULL;
END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON budget_days FOR EACH ROW EXECUTE FUNCTION note_charge();
